"""Figures and pages, from the files of runs alone."""
