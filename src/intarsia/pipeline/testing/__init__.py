"""Tests of pipelines, and a small project to begin with."""
