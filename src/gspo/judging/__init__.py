"""Rewards that models and people give: classifiers, judges, preferences."""
