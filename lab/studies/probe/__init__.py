"""`gspo probe`: what each objective would do on the user's own model, task and sampler, measured in minutes."""
