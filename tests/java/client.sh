# Sourced by the scripts here: `own_client CLASS KEY=VALUE ...` compiles CLASS.java beside this file when it is newer, and runs it
# with the environment of tests/peers (jars, NAMESRV_ADDR, PEERS_RUN, CLIENT_HEAP).
OWN_HOME="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$OWN_HOME/../peers/bin/env.sh"
OWN_CLASSES="$PEERS_CACHE/own-classes"
PEERS_CP="$OWN_CLASSES:$PEERS_CP"

own_client() {
  local name="$1"; shift
  if [ ! -e "$OWN_CLASSES/$name.class" ] || [ "$OWN_HOME/$name.java" -nt "$OWN_CLASSES/$name.class" ]; then
    mkdir -p "$OWN_CLASSES"
    (
      flock 9
      javac -nowarn -d "$OWN_CLASSES" -cp "$PEERS_LIB/*" "$OWN_HOME/$name.java" 2> >(grep -v '^Note:' >&2 || true)
    ) 9> "$OWN_CLASSES/.lock"
  fi
  client "$name" "$@"
}
