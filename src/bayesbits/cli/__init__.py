"""The command line: one small file for each command, and nothing that the library cannot do without it."""
