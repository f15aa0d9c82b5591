from __future__ import annotations

import json

import rich.console
import torch

import shorthaul as sh


def test_a_report_tells_people_and_machines_the_same(tmp_path):
    x = torch.randn(64, 64, requires_grad=True)
    rated = {"tbw": "600TB"}
    with sh.offload_activations(tmp_path, minimum_bytes=1024, endurance=rated) as offload:
        h = x * 2
        for _ in range(5):
            h = (h @ h / 8).tanh()
        loss = h.sum()
        offload.store.wait_until_idle()
        loss.backward()
    report = offload.report()
    console = rich.console.Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report.table())
    text = console.export_text()
    console.file.close()
    for said in ("peak in memory if all were kept", "prefetched", "waited for", "days until"):
        assert said in text
    assert f"{report.counts.offloaded:,}" in text
    assert report.drive_written_bytes == report.counts.written_bytes
    assert report.drive_days_left is not None
    as_json = json.loads(json.dumps(report.to_dict()))
    assert as_json["counts"]["offloaded"] == report.counts.offloaded
    assert as_json["counts"]["peak_saved_bytes"] >= as_json["counts"]["peak_live_bytes"] > 0
