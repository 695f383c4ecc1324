"""Metric families as prometheus_client renders them, from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from app.services.kit.histogram import Histogram


def gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value=value)


def gauges(name: str, told: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    """By the values of these labels."""
    family = GaugeMetricFamily(name, told, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def counter(name: str, told: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    """`name` is without the `_total` that it is shown with."""
    family = CounterMetricFamily(name, told, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def histogram(name: str, told: str, labels: list[str], values: Mapping[Any, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, told, labels=labels)
    for key, counted in sorted(values.items(), key=lambda item: item[0]):
        buckets = [("+Inf" if bound == float("inf") else f"{bound:g}", count) for bound, count in counted.cumulative()]
        family.add_metric(list(key), buckets, sum_value=counted.total)
    return family
