"""Facades under the names that other programs know: one per engine; each translates and delegates."""
