"""The command line: one file a verb. typer lives only here."""
