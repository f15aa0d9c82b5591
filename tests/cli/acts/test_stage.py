"""Acts: shown, timed, and never in each other's way."""

from shorthaul.cli.acts.stage import Act, Outcome, Stage, play


def test_an_act_is_given_the_stage_and_keeps_its_outcome() -> None:
    seen: list[bool] = []

    def show(stage: Stage) -> Outcome:
        seen.append(stage.is_quick)
        stage.say("adding")
        return Outcome(("sum",), (("2",),), {"sum": 2}, holds=True)

    played = play(Act("add", "Adding", show), Stage(is_quick=True))
    assert seen == [True]
    assert played.outcome.rows == (("2",),)
    assert played.seconds >= 0


def test_an_act_that_fails_does_not_hold_and_says_why() -> None:
    def show(stage: Stage) -> Outcome:
        raise ValueError("the curtain is stuck")

    outcome = play(Act("fail", "Failing", show), Stage(is_quick=False)).outcome
    assert not outcome.holds
    assert outcome.rows == (("failed", "ValueError: the curtain is stuck"),)
    assert outcome.figures == {"error": "ValueError: the curtain is stuck"}
