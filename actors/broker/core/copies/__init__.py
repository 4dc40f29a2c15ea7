"""Copies of stored messages, made for whoever moves them on."""
