"""What an author writes, recorded as a program."""
