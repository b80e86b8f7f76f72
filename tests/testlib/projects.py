# SPDX-License-Identifier: Apache-2.0
"""The projects of a developer's day: files, what is fetched once from registries, and a script that builds and runs it without a network.

A project lies in /day. `fetch` runs there once, when the root is made, and may reach registries. `script` is what is compared. `loose`:
regular expressions of whole paths whose content may differ from one run to the next, with the reason. `skip`: those whose names may
differ, too."""
import dataclasses
import hashlib


@dataclasses.dataclass
class Project:
    debian: str = ""          # packages
    python: str = ""          # packages of PyPI in /opt/python
    files: dict = dataclasses.field(default_factory=dict)
    fetch: str = "true"
    script: str = ""
    loose: dict = dataclasses.field(default_factory=dict)
    skip: dict = dataclasses.field(default_factory=dict)
    links: bool = True        # the numbers of hard links are compared
    seconds: int = 600        # of one run

    def version(self):
        return hashlib.sha256(repr((self.debian, self.python, self.files, self.fetch)).encode()).hexdigest()


PYC = {r".*\.pyc": "has the time at which its source was unpacked"}
CARGO = Project(
    debian="cargo-web rustc-web gcc libc6-dev",
    files={"Cargo.toml": """[package]
name = "day"
version = "0.1.0"
edition = "2021"
[dependencies]
serde = { version = "1", features = ["derive"] }
serde_json = "1"
""", "src/main.rs": r"""use serde::{Deserialize, Serialize};
#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Run { name: String, losses: Vec<f64> }
fn main() {
    let run = Run { name: "day".into(), losses: (1..5).map(|i| 1.0 / i as f64).collect() };
    let text = serde_json::to_string_pretty(&run).unwrap();
    assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), run);
    println!("{text}");
}
#[test]
fn works() { assert_eq!(serde_json::to_string(&[1, 2]).unwrap(), "[1,2]"); }
"""},
    fetch="CARGO_HOME=/day/.cargo-home cargo fetch -q",
    script="""export CARGO_HOME=/day/.cargo-home CARGO_INCREMENTAL=0
cargo build --release --offline --locked -q; ./target/release/day
sed -i 's/"day".into/"evening".into/' src/main.rs; cargo build --release --offline --locked -q; ./target/release/day
cargo test --offline --locked -q | sed 's/finished in .*//'; sha256sum target/release/day
""",
    loose={r"\.cargo-home/.*": "cargo's own caches have times", r"target/.*/\.fingerprint/.*|target/\.rustc_info\.json": "have times"})

GO = Project(
    debian="golang-go ca-certificates",
    files={"go.mod": "module example.org/day\n\ngo 1.19\n", "main.go": """package main

import (
	"fmt"

	"gopkg.in/yaml.v3"
)

func Text(n int) string {
	out, _ := yaml.Marshal(map[string][]int{"runs": make([]int, n)})
	return string(out)
}

func main() { fmt.Print(Text(3)) }
""", "main_test.go": """package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestText(t *testing.T) {
	if d := cmp.Diff("runs:\\n    - 0\\n", Text(1)); d != "" {
		t.Fatal(d)
	}
}
"""},
    fetch="""export GOMODCACHE=/day/.mod GOCACHE=/tmp/gocache GOSUMDB=off GOFLAGS=-modcacherw
go get gopkg.in/yaml.v3@v3.0.1 github.com/google/go-cmp@v0.5.9 && go mod tidy && go mod download""",
    script="""export GOMODCACHE=/day/.mod GOCACHE=/day/.gocache GOSUMDB=off GOPROXY=off GOFLAGS=-modcacherw
go build -o day .; ./day; go vet ./...; go test ./... | sed 's/[0-9.]*s$//'; sed -i 's/Text(3)/Text(4)/' main.go
go build -o day .; ./day; sha256sum day
""",
    loose={r"\.mod/cache/.*": "locks"}, skip={r"\.gocache/.*": "go's build cache: times, and names of what has times"})

NPM = Project(
    debian="nodejs npm node-gyp libnode-dev g++ make python3",
    files={"package.json": """{"name": "day", "version": "1.0.0", "dependencies": {"ms": "2.1.3", "node-addon-api": "5.1.0"},
 "scripts": {"install": "node-gyp rebuild", "test": "node test.js"}, "gypfile": true}
""", "binding.gyp": """{"targets": [{"target_name": "day", "sources": ["day.cc"],
  "include_dirs": ["<!@(node -p \\"require('node-addon-api').include\\")"], "defines": ["NAPI_DISABLE_CPP_EXCEPTIONS"]}]}
""", "day.cc": """#include <napi.h>
static Napi::Value Sum(const Napi::CallbackInfo& info) {
  double sum = 0;
  for (size_t i = 0; i < info.Length(); ++i) sum += info[i].As<Napi::Number>().DoubleValue();
  return Napi::Number::New(info.Env(), sum);
}
static Napi::Object Init(Napi::Env env, Napi::Object exports) {
  exports.Set("sum", Napi::Function::New(env, Sum));
  return exports;
}
NODE_API_MODULE(day, Init)
""", "test.js": """const day = require('./build/Release/day.node');
console.log(day.sum(1, 2, 3.5), require('ms')('2 days'));
"""},
    fetch="npm install --ignore-scripts --cache /day/.npm-cache --no-audit --no-fund && rm -r node_modules",
    script="""npm ci --offline --cache /day/.npm-cache --no-audit --no-fund >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }
npm test --silent --cache /day/.npm-cache; sha256sum build/Release/day.node
""",
    loose={r"build/config\.gypi|build/Makefile": "node-gyp writes its environment into it"},
    skip={r"\.npm-cache/.*": "npm's cache and its logs, whose names are times", r"home(/.*)?": "npm's logs"})

MAVEN = Project(
    debian="maven default-jdk-headless",
    files={"pom.xml": """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>org.example</groupId><artifactId>day</artifactId><version>1</version>
<properties><maven.compiler.source>17</maven.compiler.source><maven.compiler.target>17</maven.compiler.target>
<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
<project.build.outputTimestamp>2020-01-01T00:00:00Z</project.build.outputTimestamp></properties>
<dependencies><dependency><groupId>com.google.code.gson</groupId><artifactId>gson</artifactId><version>2.10.1</version></dependency>
<dependency><groupId>junit</groupId><artifactId>junit</artifactId><version>4.13.2</version><scope>test</scope></dependency></dependencies>
<build><plugins>
<plugin><artifactId>maven-compiler-plugin</artifactId><version>3.11.0</version></plugin>
<plugin><artifactId>maven-surefire-plugin</artifactId><version>3.1.2</version></plugin>
<plugin><artifactId>maven-jar-plugin</artifactId><version>3.3.0</version></plugin></plugins></build></project>
""", "src/main/java/Day.java": """import com.google.gson.Gson;
import java.util.Map;
public class Day {
  static String text(int n) { return new Gson().toJson(Map.of("runs", n)); }
  public static void main(String[] a) { System.out.println(text(3)); }
}
""", "src/test/java/DayTest.java": """import static org.junit.Assert.assertEquals;
import org.junit.Test;
public class DayTest {
  @Test public void text() { assertEquals("{\\"runs\\":1}", Day.text(1)); }
}
"""},
    fetch="mvn -q -Dmaven.repo.local=/day/.m2 package && rm -r target",
    script="""mvn -o -q -Dmaven.repo.local=/day/.m2 package
java -cp target/day-1.jar:.m2/com/google/code/gson/gson/2.10.1/gson-2.10.1.jar Day; sha256sum target/day-1.jar
""",
    loose={r"\.m2/.*\.(lastUpdated|properties|repositories)": "have times", r"target/surefire-reports/.*": "say how long a test took"})

WHEELS = "flask rich requests"
PIP = Project(
    debian="python3 python3-venv",
    fetch=f"python3 -m pip download -q --only-binary=:all: -d wheels {WHEELS}",
    script=f"""python3 -m venv env; env/bin/pip --disable-pip-version-check --no-cache-dir install -q --no-index --find-links wheels {WHEELS}
env/bin/pip --disable-pip-version-check list --format freeze; env/bin/python -c 'import flask, rich, requests; print(requests.__version__)'
env/bin/pip uninstall -q -y rich; find env -name '*.py' | wc -l
""", loose=PYC)
UV = Project(
    debian="python3 python3-venv", python="uv",
    fetch=f"/opt/python/bin/pip download -q --only-binary=:all: -d wheels {WHEELS}",
    script=f"""export UV_CACHE_DIR=/day/.uv-cache UV_OFFLINE=1 VIRTUAL_ENV=/day/env
uv venv -q --python /usr/bin/python3 env; uv pip install -q --no-index --find-links wheels {WHEELS}
uv pip freeze -q; env/bin/python -c 'import flask, rich, requests; print(requests.__version__)'
uv pip uninstall -q rich; find env -name '*.py' | wc -l
""", loose={**PYC, r"env/.*\.dist-info/(RECORD|uv_cache\.json)": "have the time at which the wheel was made here"},
    skip={r"\.uv-cache(/.*)?": "uv's cache: its names are random"}, links=False)

JUPYTER = Project(
    debian="python3 python3-venv", python="ipykernel nbclient nbformat",
    files={"run.py": """import nbclient, nbformat
from nbformat.v4 import new_code_cell, new_notebook
nb = new_notebook(cells=[new_code_cell(c, id=f"c{i}") for i, c in enumerate([
    "import json, os\\nvalues = [i * i for i in range(10)]\\nvalues",
    "%%writefile made.txt\\nfrom the notebook",
    "print(open('made.txt').read()); json.dump(values, open('values.json', 'w'))",
    "!ls *.json"])])
nbclient.NotebookClient(nb, timeout=120, kernel_name="python3", record_timing=False).execute()
nbformat.write(nb, "executed.ipynb")
for cell in nb.cells:
    print([o.get("text") or o["data"]["text/plain"] for o in cell.outputs])
"""},
    script="python run.py", skip={r"home(/.*)?": "IPython's history and the kernel's connection files"})

TORCH = "torch numpy setuptools ninja"
DATALOADER = Project(
    debian="python3 python3-venv", python=TORCH,
    files={"run.py": """import pathlib, torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self): self.names = sorted(pathlib.Path("data").glob("*.pt"))
    def __len__(self): return len(self.names)
    def __getitem__(self, i): return torch.load(self.names[i]).float().sum(), i

if __name__ == "__main__":
    torch.manual_seed(1)
    pathlib.Path("data").mkdir()
    for i in range(400): torch.save(torch.randint(100, (64, 64)), f"data/{i:04}.pt")
    for epoch in range(2):
        loader = DataLoader(Files(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=False, generator=torch.Generator().manual_seed(epoch))
        total, order = 0.0, []
        for sums, which in loader:
            total += sums.sum().item(); order += which.tolist()
        print(epoch, total, order[:8], len(order))
"""},
    script="python run.py", loose={r"data/.*\.pt": "a zip, which has an identity of the run"})
COMPILE = Project(
    debian="python3 python3-venv python3-dev g++", python=TORCH,
    files={"run.py": """import torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
def step(x): return torch.softmax(model(x) * 2 + x.mean(), -1)
x = torch.randn(16, 32)
with torch.no_grad():
    eager, compiled = step(x), torch.compile(step)(x)
print(torch.allclose(eager, compiled, atol=1e-5), round(compiled.sum().item(), 4))
"""},
    script="export TORCHINDUCTOR_CACHE_DIR=/day/cache; python run.py; python run.py; find cache -name '*.so' | wc -l",
    skip={r"cache(/.*)?": "its names depend on the process", r"home(/.*)?": "triton's cache"})
EXTENSION = Project(
    debian="python3 python3-venv python3-dev g++", python=TORCH,
    files={"run.py": """import torch
from torch.utils.cpp_extension import load
day = load(name="day", sources=["day.cpp"], build_directory="built", extra_cflags=["-O0"])
print(day.twice(torch.arange(4)))
""", "day.cpp": """#include <torch/extension.h>
at::Tensor twice(at::Tensor x) { return x * 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }
"""},
    script="mkdir built; python run.py; python run.py; sha256sum built/day.so",
    loose={r"built/\.ninja_(log|deps)": "have times"})
DATASETS = Project(
    debian="python3 python3-venv", python="datasets",
    files={"run.py": """import json, datasets
datasets.disable_progress_bars()
with open("data.jsonl", "w") as f:
    for i in range(20_000): f.write(json.dumps({"text": f"line {i} " * (i % 9), "label": i % 3}) + "\\n")
d = datasets.load_dataset("json", data_files="data.jsonl", split="train")
d = d.map(lambda r: {"words": len(r["text"].split())}, num_proc=2).filter(lambda r: r["words"] > 3).shuffle(seed=1)
parts = d.train_test_split(test_size=0.1, seed=2)
parts["train"].flatten_indices().save_to_disk("saved")
again = datasets.load_from_disk("saved")
print(len(again), again[0], sum(again["words"]), parts["test"].num_rows)
""" },
    script="export HF_HOME=/day/hf HF_HUB_OFFLINE=1; python run.py",
    loose={r"saved/(state|dataset_info)\.json": "have fingerprints of the run and times"},
    skip={r"hf(/.*)?": "its names are of times", r"home(/.*)?": ""})
SAFETENSORS = Project(
    debian="python3 python3-venv", python="safetensors torch numpy",
    files={"run.py": """import torch
from safetensors import safe_open
from safetensors.torch import save_file
g = torch.Generator().manual_seed(1)
save_file({f"layer{i}.weight": torch.randn(512, 512, generator=g) for i in range(100)}, "model.safetensors", metadata={"format": "pt"})
with safe_open("model.safetensors", "pt") as f:
    print(len(f.keys()), f.metadata(), round(sum(f.get_tensor(k).sum().item() for k in f.keys()), 3))
    print(f.get_slice("layer7.weight")[3:5, :4].tolist())
"""},
    script="python run.py; python run.py; sha256sum model.safetensors")

PROJECTS = {"cargo": CARGO, "go": GO, "npm": NPM, "maven": MAVEN, "pip": PIP, "uv": UV, "jupyter": JUPYTER, "dataloader": DATALOADER,
            "compile": COMPILE, "extension": EXTENSION, "datasets": DATASETS, "safetensors": SAFETENSORS}
