"""The compiler's one data structure: programs, spaces, operations."""
