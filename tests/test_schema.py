"""The published JSON Schema is current, valid, and says of shipped scenarios what the reader says."""

import json

import jsonschema
import pytest

from gpustack_mc import catalog, yamlfile
from gpustack_mc.quantities import BY_NAME, INPUTS
from gpustack_mc.schema import json_schema


def test_published_schema_is_current(root):
    published = json.loads((root / "schema" / "scenario-v1.json").read_text(encoding="utf-8"))
    assert published == json.loads(json.dumps(json_schema())), "run `gpustack-mc schema > schema/scenario-v1.json`"


def test_schema_is_valid_and_describes_every_input():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for part, title in (("", "Inputs"), ("reliability", "Reliability")):
        properties = schema["$defs"][title]["properties"]
        names = {name for name in INPUTS if BY_NAME[name].part == part}
        assert names <= set(properties)
        assert all("[" in properties[name]["description"] for name in names)


@pytest.mark.parametrize("name", list(catalog.shipped_scenarios()))
def test_shipped_scenarios_follow_the_schema(name):
    document = yamlfile.parse(*yamlfile.read_text(catalog.shipped_scenarios()[name]))
    jsonschema.validate(document.data, json_schema())


@pytest.mark.parametrize(
    "change", [{"inputs": {"mfuu": 1}}, {"cluster": {"count": 1}}, {"name": 3}, {"inputs": {"mfu": [1]}}]
)
def test_schema_refuses_what_the_reader_refuses(change):
    good = {"schema_version": 1, "name": "x", "workload": {"params": 1e9, "tokens": 1e9},
            "cluster": {"accelerator": "A100", "count": 8}}  # fmt: skip
    jsonschema.validate(good, json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | change, json_schema())
