"""`make demo`: from nothing to an answer, with every step on screen.

A cluster is brought up, the chart installed, examples/tiny-moe.yaml applied, and the model asked something through
its Service. The cluster stays up afterwards for a look around.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

from e2e.chat import ChatError, chat, service_url
from e2e.cluster import config as configuration
from e2e.cluster.api import Cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Durations, Progress, Step
from e2e.installation import CHECKPOINT, ROOT, image_references, install_chart
from e2e.kube import Kube, KubeError, NeverHappened, Object, condition, conditions_text, eventually
from images.__main__ import pack_model
from images.errors import ImageError

EXAMPLE = ROOT / "examples" / "tiny-moe.yaml"
EXAMPLE_SOURCE = "oci://registry.example.com/octavo/tiny-moe:0.1.0"
"""What the example names; the demo puts the cluster's own registry in its place."""
NAME = "tiny-moe"
NAMESPACE = "octavo-demo"
QUESTION = "What does the json module do?"
READY_SECONDS = 240
UP_TIMEOUT_SECONDS = 3600


def main() -> int:
    """Run the demo; what a person cannot fix by reading the sentence is a defect."""
    try:
        run()
    except (ClusterError, ImageError, KubeError, NeverHappened, ChatError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"\nerror: {' '.join(map(str, error.cmd[1:4]))} failed; its own words are above", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        print(
            f"\nerror: {' '.join(map(str, error.cmd[1:4]))} did not end within {error.timeout:.0f} s", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; `make demo` continues where this stopped, `make cluster-down` removes what is there")
        return 130
    return 0


def run() -> None:
    """All of it, in order."""
    started = time.monotonic()
    heading("A Kubernetes cluster")
    subprocess.run([sys.executable, "-m", "e2e.cluster", "up"], cwd=ROOT, timeout=UP_TIMEOUT_SECONDS, check=True)
    cluster = Cluster.connect()
    kube = Kube(cluster.kubectl_path, cluster.kubeconfig)
    heading("Images of operator, runtime and model")
    operator_image, runtime_image = image_references("push")
    source = "oci://" + pack_model(CHECKPOINT, f"{cluster.registry}/octavo/tiny-moe:demo", {})
    progress = Progress(Durations(configuration.current().cache_dir / "durations.json"))
    heading("Octavo, by its chart")
    with progress.step("helm upgrade --install octavo helm/octavo", "demo helm"):
        install_chart(cluster, operator_image, runtime_image)
    heading(f"The model: kubectl apply -f {EXAMPLE.relative_to(ROOT)}")
    kube.namespace(NAMESPACE)
    kube.apply(EXAMPLE.read_text().replace(EXAMPLE_SOURCE, source), NAMESPACE)
    with progress.step(f"waiting until {NAME} is Ready", "demo ready") as step:
        found = wait_ready(kube, progress, step)
    show(kube, cluster, found)
    print(f"\nFrom `make demo` to the answer: {time.monotonic() - started:.0f} s.")
    print_next_steps(cluster)


def heading(text: str) -> None:
    """A line that the eye finds."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}==> {text}{plain}", flush=True)


def wait_ready(kube: Kube, progress: Progress, step: Step) -> Object:
    """The ModelDeployment once Ready; each change of a condition is a line."""
    told: dict[str, str] = {}

    def ready() -> Object | None:
        found = kube.get("mdep", NAME, NAMESPACE)
        for state in ((found or {}).get("status") or {}).get("conditions") or []:
            text = f"{state['status']:7} {state['reason']:22} {state['message']}"
            if told.get(state["type"]) != text:
                told[state["type"]] = text
                progress.say(clipped(f"    {state['type']:20} {text}"))
        step.note(waiting_for(kube))
        state = condition(found, "Ready")
        current = found is not None and state.get("observedGeneration") == found["metadata"]["generation"]
        return found if current and state.get("status") == "True" else None

    try:
        return eventually(f"{NAME} Ready", ready, READY_SECONDS)
    except NeverHappened as error:
        raise NeverHappened(f"{error}\n{conditions_text(kube.get('mdep', NAME, NAMESPACE))}") from error


def waiting_for(kube: Kube) -> str:
    """What the newest pod is at, in a few words."""
    pods = kube.items("pods", NAMESPACE, f"serving.octavo.dev/model={NAME}")
    if not pods:
        return "no pod yet"
    newest = max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    role = newest["metadata"]["labels"].get("app.kubernetes.io/component", "pod")
    return f"{role} pod {newest['status'].get('phase', 'Unknown')}"


def clipped(text: str) -> str:
    """One screen line, where the screen's width is known."""
    width = shutil.get_terminal_size((160, 24)).columns
    return text if len(text) <= width else text[: width - 3] + "..."


def show(kube: Kube, cluster: Cluster, found: Object) -> None:
    """The answer, the columns, and why it was planned so."""
    heading(f'Asking through the Service: "{QUESTION}"')
    with service_url(kube, NAME, NAMESPACE, direct=not cluster.external) as url:
        answer = chat(url, NAME, QUESTION)
    print(f"    {answer['choices'][0]['message']['content'].strip()}")
    usage = answer["usage"]
    print(f"    ({usage['prompt_tokens']} prompt tokens, {usage['completion_tokens']} generated; 4 million parameters,")
    print("    trained for an hour on Python's documentation: it knows modules and little else)")
    heading("kubectl get mdep -o wide")
    print(kube.run("get", "mdep", "-n", NAMESPACE, "-o", "wide"), end="")
    heading("Why: status.plan")
    print(json.dumps(found["status"]["plan"], indent=2))


def print_next_steps(cluster: Cluster) -> None:
    """What to try now that it runs."""
    own = "" if cluster.external else f"    export KUBECONFIG={cluster.kubeconfig}\n"
    print(
        f"""
The cluster stays up. Try next:
{own}    kubectl -n {NAMESPACE} describe mdep {NAME}
    kubectl -n {NAMESPACE} scale mdep {NAME} --replicas=2
    kubectl -n {NAMESPACE} delete pod -l serving.octavo.dev/model={NAME}     # it comes back Ready by itself
    kubectl -n {NAMESPACE} port-forward service/{NAME} 8000:80 &
    curl -s localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{{"model": "{NAME}", "messages": [{{"role": "user", "content": "{QUESTION}"}}], "stream": true}}'
    make cluster-down                                           # removes every trace of it
"""
    )


if __name__ == "__main__":
    sys.exit(main())
