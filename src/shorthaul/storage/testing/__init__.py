"""Engines and a contract suite to test storage engines and their users with."""
