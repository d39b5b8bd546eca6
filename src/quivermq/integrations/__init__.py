"""Integrations with frameworks, each behind an extra of the package."""
