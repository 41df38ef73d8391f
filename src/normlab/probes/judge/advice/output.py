"""Words about the loss, training, gradients and what was tried."""

from __future__ import annotations

from normlab.probes.judge.advice.words import Words

TEXTS = {
    "gradient_imbalance": Words(
        "gradients",
        "one learning rate cannot fit layers whose gradients differ this much: some hardly learn, or others diverge",
        "late-heavy: {late}, or a longer warm-up; early-heavy: {early}. "
        "The map of rates and warm-up for each: normlab stability --schemes {compare}",
        {"late": ("pre_norm", "deep_norm"), "early": ("peri_norm", "ln_scaling")},
    ),
    "wrong_gradient": Words(
        "gradients",
        "moving the stream changes the loss by something else than the backward pass says: predictions are right, and what "
        "is learnt from them is not. This layer and all before it are trained with a wrong gradient",
        "look in this layer for a detach, a no_grad, a clamp or rounding, and for a kernel of your own "
        "(torch.autograd.gradcheck tells which). Where it is meant so (straight-through estimates, stop-gradients), leave it",
        normal="equal to a few per cent",
    ),
    "wasted_layers": Words(
        "causal",
        "confirmed by skipping: on this text and loss the layer does nothing that the others do not",
        "to save it (the skip experiment above is the loss without it), remove it and train its neighbours on: normlab prune "
        "MODEL --most 1 --heal 200; in a new model, try fewer layers",
    ),
    "worse_than_chance": Words(
        "loss",
        "to score worse than blind guessing a model must be sure of wrong answers: weights, tokenizer and text do "
        "not belong together, or something in it is broken",
        "check that the tokenizer is the model's own; then look at the verdicts above, and at what changed since "
        "the last good checkpoint",
        normal="at or below chance",
    ),
    "worse_than_frequencies": Words(
        "loss",
        "counting tokens does better than this model, and it does not know: weights and tokenizer do not belong together, "
        "rows of the embedding or the head are displaced, or something in it is broken",
        "check that the tokenizer is the model's own and that every weight was loaded; then look at the other verdicts",
        normal="below the loss of token frequencies",
    ),
    "at_chance": Words(
        "loss",
        "a model that knows nothing cannot be told from a broken one, and most rules compare with trained models",
        "train it first; if it was trained, check that its weights were loaded",
        normal="well below chance after training",
    ),
    "hardly_trained": Words(
        "training",
        "what layers do at this age says little about what they will do: other findings are notes",
        "come back when the loss is below that of token frequencies",
        normal="below token frequencies after some hundred steps",
    ),
    "miscalibrated": Words(
        "loss",
        "the model is wrong about how much it knows: a wrong scale before the softmax, a text that is not of its "
        "kind, or a broken part",
        "look at the final norm and the head, and at the verdicts above; try a text of its kind",
        normal="the loss is within a fifth of the expected one",
    ),
    "context_unused": Words(
        "loss",
        "more context should help; where it hurts, positions or masks are wrong, or the windows are longer than in"
        " training",
        "check the positions (rotary base and scaling, the table of positions) and the length it was trained on",
        normal="later tokens are easier than early ones",
    ),
    "not_deterministic": Words(
        "loss",
        "a model in eval mode must say the same twice: dropout or noise that is left on costs quality",
        "call model.eval(); look for functional dropout without training=self.training",
        normal="no difference",
    ),
    "better_changed": Words(
        "causal",
        "confirmed by trying, on windows that the change was not chosen on: with it the loss falls, a few steps of training "
        "gain no more than in a healthy model, the model knows how much it knows, and context helps. The opposite had "
        "probably been done to it",
        "look for the conversion, the edit or the setting that did the opposite, and mend it there",
        normal="no such change lowers the loss",
    ),
    "helping_change": Words(
        "causal",
        "in a damaged model many changes lower the loss; one that leaves the model damaged makes up for something else",
        "do not keep the change; look at the other findings, and compare the weights with the checkpoint they came from",
        normal="no such change lowers the loss",
    ),
    "unknown_cause": Words(
        "loss",
        "a few steps of training regain what a trained model has no more to gain: its weights, its settings or the text are "
        "not those of its training",
        "try a text of the kind that it was trained on; then compare settings and weights with the last good checkpoint",
        normal="below 0.03 nats in healthy small models",
    ),
    "quickly_repaired": Words(
        "weights",
        "confirmed by trying: a trained model gains next to nothing by a few small steps; one that gains much was changed "
        "after training (an optimizer's state, a merge, few bits), or the text is not of the kind that it learnt",
        "try a text of its kind; then compare the weights with the last good checkpoint, or train on for some hundred steps",
        normal="below 0.01 nats in healthy small models of some hundred steps",
    ),
    "gradient_outlier": Words(
        "gradients",
        "the loss wants this matrix changed, and not those of the layers around: it may have been changed after training, "
        "or have taken no part in it",
        "compare the matrix with the checkpoint it came from",
        normal="as in the layers around",
    ),
    "coherent_gradients": Words(
        "loss",
        "the gradients of a trained model are nearly all noise; where batches agree, training is far from done, the weights "
        "were changed afterwards, or the text is not of the kind that the model learnt",
        "try a text of its kind; then compare the weights with the last good checkpoint",
        normal="some thousand targets in trained models",
    ),
    "not_trained": Words(
        "training",
        "what layers do at random weights says little about what they will do: other findings are notes",
        "train it first; if it was trained, check that its weights were loaded",
        normal="gains that differ between coordinates after training",
    ),
    "frozen_layers": Words(
        "training",
        "a model that learnt without its layers: they were frozen, or their weights were not loaded",
        "check which parameters the optimizer was given, and that every tensor of the layers was read",
        normal="gains that differ between coordinates after training",
    ),
    "harmful_layers": Words(
        "causal",
        "confirmed by skipping: the model is better without it",
        "look at this layer first: weights that were not loaded, scaled, or exchanged; compare them with the checkpoint they "
        "came from",
        normal="a loss that rises without the layer",
    ),
}
