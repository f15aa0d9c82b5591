"""Tables whose rows are owned by many ranks: who has which rows, and how they come."""
