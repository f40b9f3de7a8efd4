"""Old MuJoCo ids of Gymnasium, and the current ids that replace them."""
