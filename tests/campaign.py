"""Searches that find more the longer they last: `make campaign` makes them in full, the suite briefly."""

import os

CAMPAIGN = "GSPO_CAMPAIGN" in os.environ
