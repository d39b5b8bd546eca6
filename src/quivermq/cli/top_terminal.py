"""Runs the screen of `quiver top` on a terminal.

Imports prompt_toolkit, so that only a live view loads it: it takes keys, and draws again when the
terminal changes its size.
"""

import asyncio
import signal
import time
from contextlib import suppress
from typing import Final

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window

from quivermq.cli.top_samples import Sampler
from quivermq.cli.top_screen import Screen
from quivermq.errors import QuiverError

_SHARE: Final = 4
"""A sample that takes long is followed by a pause of so many times its length."""
_REDRAW_SECONDS: Final = 1.0
_NAMES: Final = {Keys.ControlM: "enter", Keys.ControlI: "tab", Keys.ControlH: "backspace"}
_BOUND: Final = (
    "up", "down", "left", "right", "pageup", "pagedown", "home", "end", "tab", "s-tab", "enter",
    "escape", "backspace", "c-c", "c-d", "<sigint>", "<any>",
)  # fmt: skip


async def run_screen(screen: Screen, sampler: Sampler) -> None:
    """Show the screen until a key, or SIGTERM, ends it."""
    woken = asyncio.Event()
    application = _application(screen, woken)
    looking = asyncio.create_task(_keep_sampling(screen, sampler, application, woken))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, _end, application)
    try:
        await application.run_async()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _keep_sampling(
    screen: Screen, sampler: Sampler, application: Application[None], woken: asyncio.Event
) -> None:
    while True:
        woken.clear()
        began = time.monotonic()
        if not screen.is_paused:
            try:
                screen.take(await sampler.sample())
            except QuiverError as error:
                screen.fail(str(error) or error.code)
            except Exception as error:
                # Not raised here: the application puts the terminal in order first.
                application.exit(exception=error)
                return
            application.invalidate()
        took = time.monotonic() - began
        # With very many topics a sample takes long, and is taken less often.
        pause = max(screen.interval - took, min(_SHARE * took, screen.interval))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await woken.wait()


def _application(screen: Screen, woken: asyncio.Event) -> Application[None]:
    keys = KeyBindings()

    def press(event: KeyPressEvent) -> None:
        key = event.key_sequence[0].key
        before = (screen.interval, screen.is_paused)
        screen.press(_NAMES.get(key, key.value) if isinstance(key, Keys) else key)
        if (screen.interval, screen.is_paused) != before:
            woken.set()
        if screen.is_over:
            _end(event.app)
        event.app.invalidate()

    for name in _BOUND:
        keys.add(name, eager=name == "escape")(press)

    @keys.add("c-z")
    def suspend(event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    def text() -> StyleAndTextTuples:
        size = application.output.get_size()
        drawn: StyleAndTextTuples = []
        for line in screen.draw(size.columns, size.rows):
            drawn += [*line, ("", "\n")]
        return drawn[:-1]

    shown = Window(FormattedTextControl(text, show_cursor=False, focusable=True), wrap_lines=False)
    application: Application[None] = Application(
        layout=Layout(shown),
        key_bindings=keys,
        full_screen=True,
        refresh_interval=_REDRAW_SECONDS,
    )
    # A lone Esc is acted on at once, not after the half second in which more might follow.
    application.ttimeoutlen = 0.05
    return application


def _end(application: Application[None]) -> None:
    if application.is_running and not application.is_done:
        application.exit()
