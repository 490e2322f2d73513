"""The command line: what the library does, as commands.

`main` puts the commands together, `commands` has each command with its options. Neither imports torch, so that help,
version and shell completion come at once; a command imports its implementation (`search`, `sweep`, `posttrain`,
`sensitivity`, `deploy`, `show`) when it runs.
"""
