"""Poros."""
