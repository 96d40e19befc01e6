"""Samplers and policies on concrete engines. Imported only by build, and by the demo, which builds its own model."""
