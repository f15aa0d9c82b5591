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


def test_why_tensors_were_left_alone_is_counted_in_json_too(tmp_path):
    layer = torch.nn.Linear(64, 64)
    with sh.offload_activations(tmp_path, minimum_bytes=1024) as offload:
        for _ in range(3):
            layer(torch.randn(64, 64, requires_grad=True)).sum().backward()
    report = offload.report()
    as_json = json.loads(json.dumps(report.to_dict()))
    assert as_json["counts"]["left_alone"] == dict(report.counts.left_alone)
    assert as_json["counts"]["left_alone"]["parameter"] > 1


def test_a_report_stays_as_it_was_when_it_was_asked_for(tmp_path):
    x = torch.randn(64, 64, requires_grad=True)
    with sh.offload_activations(tmp_path, minimum_bytes=1024) as offload:
        before = offload.report()
        (x * 2).sin().sum().backward()
    assert before.counts.offloaded == 0
    assert offload.report().counts.offloaded == 1
