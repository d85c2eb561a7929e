"""Stands for torch: says when it was imported."""

import time

STAMP = time.monotonic_ns()
