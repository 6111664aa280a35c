"""Expectations: counted, judged row by row, dropped or put into a quarantine."""
