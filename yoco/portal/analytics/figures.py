"""Plotly figures as plain JSON. Colours are custom properties (`--accent`), which the page's script looks up, so that a
chart follows the theme. Marks of different bases are separate series and never joined by a line."""

from decimal import Decimal
from textwrap import wrap
from typing import Any

from yoco.core.templatetags.formats import reader_locale
from yoco.waste.model import HOUR_MS

HEIGHT = 340
LABEL_WIDTH = 18  # characters of a line, so that a phone has room for the bars beside their names

Trace = dict[str, Any]
Figure = dict[str, Any]

TRANSPARENT = "rgba(0,0,0,0)"
DAY = "%d/%m/%y"  # as both languages write it; plotly brings English month names only
PALETTE = ("--phase-1", "--phase-2", "--phase-3", "--phase-4", "--phase-5", "--phase-6", "--quiet-fill", "--warn-fill")


def figure(traces: list[Trace], *, x: Trace | None = None, y: Trace | None = None, **layout: Any) -> Figure:
    """Traces on plain axes, with a legend above where there are several."""
    axis = {
        "gridcolor": "--line",
        "linecolor": "--line-strong",
        "zerolinecolor": "--line-strong",
        "automargin": True,
        "fixedrange": True,
    }
    return {
        "data": traces,
        "layout": {
            "xaxis": axis | _numbers(x or {}) | (x or {}),
            "yaxis": axis | _numbers(y or {}) | (y or {}),
            "font": {"color": "--ink-soft", "size": 12},
            "paper_bgcolor": TRANSPARENT,
            "plot_bgcolor": TRANSPARENT,
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "showlegend": len(traces) > 1,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
            "height": HEIGHT,
            "separators": ",." if reader_locale() == "es_ES" else ".,",
            "hoverlabel": {"bgcolor": "--surface", "bordercolor": "--line-strong", "font": {"color": "--ink"}},
            **layout,
        },
    }


def _numbers(axis: Trace) -> Trace:
    """Ticks as the reader writes numbers, not as plotly's 10k; days and names are none."""
    return {} if axis.get("type") in ("date", "category") else {"tickformat": ",.9~r"}


def counts(values: list[int]) -> Trace:
    """An axis of whole numbers: plotly would put ticks at halves of small ones."""
    return {"rangemode": "tozero", **({"dtick": 1} if max(values, default=0) <= 10 else {})}


def bars(name: str, x: list[Any], y: list[Any], colour: str, **more: Any) -> Trace:
    """Upright bars."""
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": colour}, **more}


def label(name: str) -> str:
    """A name on several short lines. Plotly reads tags in labels, so those of a name lose their meaning."""
    return "<br>".join(wrap(name.replace("&", "&amp;").replace("<", "&lt;"), LABEL_WIDTH)) or name


def hours(gpu_ms: int | None) -> float | None:
    """GPU-hours to three decimals, as the tables print them."""
    return None if gpu_ms is None else float((Decimal(gpu_ms) / HOUR_MS).quantize(Decimal("0.001")))


def height_of(rows: int) -> int:
    """Pixels for so many lying bars, or groups of bars."""
    return max(HEIGHT, 110 + 56 * rows)


def lying_bars(name: str, labels: list[str], values: list[Any], colour: str, **more: Any) -> Trace:
    """Bars with room for long names; the axis should be reversed, so that the first stands on top."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [label(each) for each in labels],
        "x": values,
        "marker": {"color": colour},
        **more,
    }


def marks(name: str, x: list[Any], y: list[Any], colour: str, symbol: str, **more: Any) -> Trace:
    """Points without a line."""
    marker = {"color": colour, "symbol": symbol, "size": 10}
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker, **more}


def bounds(values: list[Any], low: list[Any], high: list[Any], colour: str) -> Trace:
    """Error bars of points; a bound that is not known draws none."""
    if all(bound is None for bound in (*low, *high)):
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": [None if b is None or v is None else b - v for v, b in zip(values, high, strict=True)],
        "arrayminus": [None if b is None or v is None else v - b for v, b in zip(values, low, strict=True)],
        "color": colour,
        "thickness": 1.5,
    }
