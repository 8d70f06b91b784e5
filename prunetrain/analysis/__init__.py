"""Reads a work directory, never trains: tables and plots."""

from prunetrain.analysis.table import print_results

__all__ = ["print_results"]
