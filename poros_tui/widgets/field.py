"""A field whose text, while nobody types in it, is cut where it tells least."""

from __future__ import annotations

from rich.text import Text
from textual.strip import Strip
from textual.widgets import Input

from poros_tui import glyphs, words


class Field(Input):
    """Textual's, which cuts a long path at its end: there its name stands."""

    def render_line(self, y: int) -> Strip:
        """With the keyboard the part around the cursor, else both ends."""
        room = self.scrollable_content_region.width
        if self.has_focus or y or len(self.value) <= room:
            return super().render_line(y)
        shown = Text(words.shortened(self.value, room, glyphs.chosen().dots), end="")
        options = self.app.console_options.update_width(room + 1)
        strip = Strip(self.app.console.render(shown, options))
        return strip.extend_cell_length(room + 1).apply_style(self.rich_style)
