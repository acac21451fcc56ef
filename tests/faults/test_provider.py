"""Real HTTP faults before a real run: what a provider does never becomes an outcome, a verdict or an empty proposal."""

from __future__ import annotations

import json
import re

import pytest

from tests.evolve.test_ledger import ledger
from tests.faults.proxy import KINDS
from valve_plugin.bank.entries import Judged
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify


@pytest.mark.heavy
def test_with_a_third_of_all_calls_failing_the_ledger_is_the_same(asking, undisturbed, faulty, tmp_path):
    proxy = faulty(0.3, slow=16.0)
    done = asking(tmp_path / "bank", proxy)
    assert len(proxy.injected) >= 5, "faults of many kinds happened"
    assert re.search(r"waiting   the provider fails \(.+\), try \d of 10, next in 1 s", done.stderr)
    assert ledger(tmp_path / "bank") == ledger(undisturbed.bank)
    assert verify(tmp_path / "bank") == []


@pytest.mark.heavy
def test_what_only_a_person_can_mend_pauses_the_run_and_says_what_to_do(calc, asking, undisturbed, faulty, tmp_path):
    """A key revoked in the middle of the baseline, a quota used up where only the extraction is left."""
    half = undisturbed.calls // 2
    for passed, kind, todo in ((2, "401", "check OPENAI_API_KEY"), (half, "quota", "top it up")):
        proxy = faulty()
        proxy.after = (passed, kind)
        paused = asking(tmp_path / "bank", proxy, check=False)
        assert paused.returncode == 3
        assert todo in paused.stderr
        assert "paused    " in paused.stderr
        assert f"then start it again: valve evolve {calc} --bank {tmp_path / 'bank'} " in paused.stderr
        judged = [e for e in BankStore.open(tmp_path / "bank").entries() if isinstance(e, Judged)]
        assert not [e for e in judged if e.verdict.decision == "indecisive"]
    asking(tmp_path / "bank")
    assert ledger(tmp_path / "bank") == ledger(undisturbed.bank)


SHOWN = {
    "429": "(HTTP 429: slow down)", "500": "(HTTP 500: no)", "503-html": "(HTTP 503)", "529": "(HTTP 529: no)",
    "half": "(peer closed connection", "reset": "(Server disconnected", "html": "<html>sign in</html>",
}  # fmt: skip


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("timeout", "429-later")])
def test_an_extraction_asks_again_and_is_never_lost_to_a_fault(kind, monkeypatch):
    """Every kind of fault twice, then the answer; and with too few tries an error, no empty proposal."""
    from tests.extract.provider import provider
    from tests.extract.test_reflect import ANSWER, ATTEMPTS, DIGESTS
    from tests.faults.proxy import before
    from valve_plugin.config import Settings
    from valve_plugin.errors import InfrastructureError
    from valve_plugin.extract.reflect import reflect
    from valve_plugin.records import Bank

    with provider(json.dumps(ANSWER)) as server, before(server.base.removesuffix("/v1"), 1, 0.0) as proxy:

        def ask(tries: int):
            kwargs = {"api_base": f"{proxy.base_url}/v1", "api_key": "none", "timeout": 60}
            given = {"model": "openai/m", "model_kwargs": kwargs, "model_tries": tries, "model_pause": 0.01}
            return reflect(Settings(**given, review="off"), Bank(repo="o/r"), "issue", ATTEMPTS, DIGESTS)

        drawn = proxy.drawn
        faults = [kind, kind]
        proxy.drawn = lambda body: faults.pop() if faults else drawn(body)
        assert not ask(3).empty
        faults += [kind, kind]
        with pytest.raises(InfrastructureError, match="the run pauses, nothing is lost") as raised:
            ask(2)
    assert SHOWN.get(kind, "") in str(raised.value), "what came over the wire"
    assert "litellm." not in str(raised.value)
