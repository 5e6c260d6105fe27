"""Tests of runs that several processes share."""
