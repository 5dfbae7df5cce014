"""Credible intervals and sensitivity for the time, energy, CO2 and cost of training an AI model."""

__version__ = "0.1.0"
