"""Verdicts on profiles and roofline regimes: pure functions of figures that others measured."""
