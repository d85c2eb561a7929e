"""Model Factory."""
