"""DGL's layers of one relation, and its layer of many."""
