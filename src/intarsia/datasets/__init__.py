"""Doors under the names other programs know: one package per engine, each translates and delegates."""
