"""Figures and pages, made only from the files of runs."""
