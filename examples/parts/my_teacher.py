from dataclasses import dataclass

import sage_rlvr


def teach(problem, responses, verdict):
    """Guidance after a failed attempt. responses: the policy's own words, one text per turn."""
    return f"you tried {responses[-1]}, and {verdict.reason}"


@sage_rlvr.teacher
@dataclass(frozen=True)
class Short:
    """The verdict's reason, cut short."""

    most: int = 40
    leak: bool = False

    def teach(self, task, problem, responses, verdict):
        return verdict.reason[: self.most]
