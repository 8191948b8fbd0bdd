#!/usr/bin/env bash
# kafka-python 3.0.12: a user whose name has a comma or an equals sign cannot log in by SCRAM.
#
# RFC 5802, 5.1 sends "," in a name as "=2C" and "=" as "=3D", as Kafka's Java client, librdkafka and aiokafka do.
# kafka-python sends the name as it is. The server reads "alice" of "alice,x", and refuses the login with the words for a
# wrong password.
#
# Seen: "n,,n=alice,x=y,r=" where "n,,n=alice=2Cx=3Dy,r=" is required.
#
# Needs Python 3.11 and a network for pip. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kafka-python==3.0.12
seen=$("$folder/venv/bin/python" - <<'PY'
from kafka.net.sasl.scram import ScramClient

client = ScramClient("alice,x=y", "secret", "SCRAM-SHA-512")
print(client.first_message().decode().removesuffix(client.nonce.decode()))
PY
)
echo "$seen"
[ "$seen" = "n,,n=alice,x=y,r=" ]
