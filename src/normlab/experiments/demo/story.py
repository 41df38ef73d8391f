"""The stages in order. Ctrl-C ends a stage and the next one begins; what is finished is found again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from normlab.experiments.atlas.measure import Atlas
from normlab.experiments.demo import page as pages
from normlab.experiments.demo import stages
from normlab.experiments.demo.settings import STAGES, DemoSettings
from normlab.report import console, print_page, write_page

Found = TypeVar("Found")
TOLD = {
    "atlas": "every scheme before training: how the stream grows, who gets the gradient",
    "training": "three schemes while they train, each without a warm-up and with one",
    "fault": "one norm gain of a trained model is multiplied; does the diagnosis find it?",
}


@dataclass(frozen=True)
class Told:
    """What the stages found, where the page is, and how long each stage took (wall seconds)."""

    atlas: Atlas | None
    runs: tuple[stages.Trained, ...]
    planted: stages.Planted | None
    page: Path | None
    seconds: dict[str, float]


@dataclass
class Story:
    settings: DemoSettings
    out: Path
    skip: Collection[str] = ()
    workers: int = 0
    quiet: bool = False

    def tell(self) -> Told:
        """All stages, then the page."""
        self.say(f"normlab demo: {self.settings.sentence}. Everything is written to {self.out}.")
        self.took: dict[str, float] = {}
        wanted = self.settings
        atlas = self._stage("atlas", lambda: stages.look_at_all(wanted.atlas, self.out, quiet=self.quiet))
        self._stage("training", self._train)
        runs = stages.trained(wanted.training, self.out)
        planted = self._stage("fault", lambda: stages.plant_and_find(wanted.fault, runs, self.out))
        page = write_page(pages.build(atlas, runs, planted), self.out / "report.html")
        told = Told(atlas, runs, planted, page, self.took)
        self._end(told)
        return told

    def _train(self) -> None:
        stages.train_arms(self.settings.training, self.out, workers=self.workers, quiet=self.quiet)

    def _stage(self, name: str, work: Callable[[], Found]) -> Found | None:
        number = STAGES.index(name)
        head = f"[{number + 1}/{len(STAGES)}] {TOLD[name]}"
        if name in self.skip:
            self.say(f"\n{head}: skipped")
            return None
        self.say(f"\n{head} (about {self.settings.seconds[number]} s)")
        begun = time.monotonic()
        try:
            return work()
        except KeyboardInterrupt:
            self.say("stopped; on to the next stage (what was trained is kept, and the same command goes on with it)")
            return None
        finally:
            self.took[name] = time.monotonic() - begun

    def _end(self, told: Told) -> None:
        if "fault" not in self.skip and told.planted is None:
            self.say("no model was trained far enough to plant a fault in; run the demo again without skipping stage 2")
        if told.planted is not None:
            self.say(f"before: {told.planted.before.headline}\nafter:  {told.planted.after.headline}")
        self.say("")
        for sentence in pages.answer(None, told.runs, told.planted):
            self.say(sentence)
        spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in told.seconds.items())
        self.say(f"\ntook: {spent}")
        if not self.quiet:
            print_page(told.page)

    def say(self, text: str) -> None:
        if not self.quiet:
            console().print(text)
