"""The documentation: its code runs, its links lead somewhere, its site builds."""
