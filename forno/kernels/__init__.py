"""Backends: what computes the ops of a program, each in a folder of its own."""
