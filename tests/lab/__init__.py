"""Tests of lab/: its scripts import each other by their names, as where they are started."""

import sys
from pathlib import Path

LAB = Path(__file__).parents[2] / "lab"
sys.path += [str(LAB), str(LAB / "studies"), str(LAB / "speed")]
