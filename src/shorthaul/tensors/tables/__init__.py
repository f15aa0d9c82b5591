"""Rows that lie somewhere: what every table promises, and the tables in memory."""
