#!/usr/bin/env bash
# From a fresh machine to BLEU against sentence length, for three kinds of model: an RNN without attention, an RNN with
# Bahdanau attention, a Transformer.  Needs Python >= 3.11 with pip, and pip's network for packages and corpus.
#     bash scripts/demo.sh            about 22 minutes on two cores, setting up included
#     bash scripts/demo.sh --quick    the same path in under eight minutes, with shorter training
# Run again, it goes on where it stopped and repeats nothing that is done.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,6s/^# \{0,1\}//p' "$0"; }
quick=""
case "${1:-}" in
    "") ;;
    --quick) quick=1 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "error: argument: expected --quick or --help, got $1" >&2; exit 2 ;;
esac

say() { printf '\n== [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
models="rnn_none rnn_additive transformer"
root=runs/demo${quick:+-quick}
toy_options="" bible_options=""
[ -z "$quick" ] || toy_options="--training.max-steps 250" bible_options="--training.max-steps 60 --optimizer.warmup-steps 30 --decoding.beam-size 1"

# train_and_score CONFIG RUN [options of train.py]
train_and_score() {
    local config=$1 run=$2
    shift 2
    if [ -e "$run/eval/test.metrics.json" ]; then
        echo "$run: trained and scored before"
        return
    fi
    "$VENV/bin/python" scripts/train.py "$config" --run-dir "$run" --resume "$@"
    "$VENV/bin/python" scripts/evaluate.py "$run" --split test
}

compare() {
    local out=$1
    shift
    "$VENV/bin/python" scripts/compare.py "$@" --out "$out"
}

source scripts/setup.sh "" # without it the script would read the arguments of this one

say "1 of 4: reverse a sequence of symbols with each model (about $([ -z "$quick" ] && echo 4 || echo 2) minutes)"
echo "A fixed vector cannot hold a long sequence; attention can look back at it."
for model in $models; do
    say "reversal: $model"
    # shellcheck disable=SC2086
    train_and_score configs/toy/reverse_$model.toml "$root/reverse/$model" $toy_options
done
compare "$root/reverse/compare" $(printf "$root/reverse/%s " $models)

say "2 of 4: the corpus, English and French verses (half a minute and 70 MB the first time)"
"$VENV/bin/python" scripts/prepare_data.py bible --pair en-fr

say "3 of 4: train and score the three models on it (about $([ -z "$quick" ] && echo 17 || echo 5) minutes)"
for model in $models; do
    say "translation: $model"
    # shellcheck disable=SC2086
    train_and_score configs/bible/demo_en_fr_$model.toml "$root/bible/$model" $bible_options
done

say "4 of 4: compare"
compare "$root/bible/compare" $(printf "$root/bible/%s " $models)
echo "In the beginning was the Word." | "$VENV/bin/python" scripts/translate.py "$root/bible/transformer" --attention "$root/attention"

say "done; look at"
printf '%s\n' "$root"/*/compare/report.html "$root"/reverse/compare/*.png "$root"/bible/compare/*.png "$root"/attention/*.png
