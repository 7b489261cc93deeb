"""Traces and metrics for an OpenTelemetry collector, by OTLP over HTTP."""
