"""What a completion is worth: named rewards and functions in processes, models, judges and preferences."""
