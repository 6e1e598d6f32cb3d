Boutput_0J
?שה?